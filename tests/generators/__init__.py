"""What jaxmesh proves about itself on the machine it runs on: `jaxmesh selftest`."""
