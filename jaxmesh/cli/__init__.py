"""The command line `jaxmesh`: one module per command."""
