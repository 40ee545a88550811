"""Tests of the simulated world; a package so that they can share simkit."""
