"""What sections of YAML files are made of: mappings, numbers and quantities with units, values
drawn per client. A section stands in the room whose parts are built from it."""
