"""What every other room may use: errors, units, seeds, parts by name, files read with care, laws
and tables of numbers, what a method and a level are. Standard library and NumPy."""
