"""The ground floor: whatever every other room may use.

Errors, units, seeds, parts by name, files read with care, laws and tables of numbers,
the contract of methods, levels. Standard library and NumPy.
"""
