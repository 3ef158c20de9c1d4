"""What every other room may use: errors, units, seeds, parts by name, files read with care, laws
and tables of numbers, and the contract between time and learning. Standard library and NumPy."""
