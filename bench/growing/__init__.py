"""The parts of `growth.py`: its synthetic tenants, how they are loaded, and what is measured of them."""
