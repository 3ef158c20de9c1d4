"""What setup.cfg has no words for: the compiled convolutions of small models.

Where there is no compiler the package is built without them, and PyTorch's are used.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "simfed.native._convpool",
            ["simfed/native/convpool.cpp"],
            depends=["simfed/native/convpool_loops.h"],
            extra_compile_args=["-O3", "-ffp-contract=fast", "-fno-exceptions", "-fno-rtti"],
            optional=True,
        )
    ]
)
