"""What setup.cfg has no words for: the compiled convolutions of small models, and the compiled
network.

Where there is no compiler the package is built without them: convolutions are PyTorch's then, the
network is Python's.
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
        ),
        Extension(
            "simfed.native._sharing",
            ["simfed/native/sharing.cpp"],
            # contraction would change last bits
            extra_compile_args=["-std=c++17", "-O2", "-ffp-contract=off"],
            optional=True,
        ),
    ]
)
