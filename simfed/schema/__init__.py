"""The pieces of YAML sections: mappings, quantities with units, drawn values.

A section stands in the room whose parts are built from it; here is what all of them are
made of. `section` is the base class and says when a key counts, `options` the mappings
whose keys are a part's own options, `fields` and `quantity` the types of keys,
`distribution` values that are drawn per client, `places` the walk from annotations to
key paths, and `sentences` turns pydantic's errors into simfed's.
"""
