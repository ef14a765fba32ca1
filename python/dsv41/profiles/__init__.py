"""Profiles as data: what is served, one TOML file each."""
