"""Azure Resource Manager for the Azure adapter: the VM, the error codes, the link."""
