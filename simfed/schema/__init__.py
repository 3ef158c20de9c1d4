"""The pieces of YAML sections: mappings, quantities with units, drawn values.

A section stands in the room whose parts are built from it.
"""
