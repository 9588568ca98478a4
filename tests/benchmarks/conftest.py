"""The devices are those that `tests/conftest.py` emulates."""
