"""What setup.cfg has no words for: the compiled loops.

Where there is no compiler the package is built without them: layers are PyTorch's then.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "simfed.native._layers",
            [f"simfed/native/{part}.cpp" for part in ("layers", "convpool")],
            depends=[
                f"simfed/native/{part}.h"
                for part in ("both_widths", "convpool_loops", "vectors")
            ],
            extra_compile_args=[
                "-O3",
                "-ffp-contract=fast",
                "-fno-exceptions",
                "-fno-rtti",
            ],
            optional=True,
        ),
    ]
)
