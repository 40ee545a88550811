"""HTTP skins over the simulated world that the real cloud SDKs talk to."""
