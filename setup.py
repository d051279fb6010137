"""Metadata, dependencies, the package_dir mapping and the entry points. BUILD.md says why each dependency is there."""

from setuptools import setup

# heads/ and tools/ lie beside the core in the tree but are installed inside it, so that
# nothing called `heads` or `tools` ever lands at top level.
PACKAGES = {"keras_bert_lab": "keras_bert_lab", "keras_bert_lab.heads": "heads", "keras_bert_lab.tools": "tools"}

# tensorflow-text must match TensorFlow's minor version and has no wheels for Windows and some Arm machines;
# without it everything works but the in-graph tokenizer. 2.21.0 does not import.
TEXT = "tensorflow-text>=2.21.1,<2.22; platform_system=='Linux' and platform_machine=='x86_64' or platform_system=='Darwin'"

setup(
    name="keras_bert_lab",
    version="0.1.0",
    packages=list(PACKAGES),
    package_dir=PACKAGES,
    python_requires=">=3.10",
    install_requires=[
        "tensorflow>=2.21,<2.22",
        TEXT,
        "keras>=3.12,<3.16",
        "keras-nlp>=0.25,<0.33",
        "tf2onnx>=1.17,<2",
        "absl-py>=2",
        "numpy>=1.26",
        "safetensors>=0.5",
    ],
    entry_points={
        "console_scripts": ["keras-bert-lab = keras_bert_lab.tools.main:run"],
        "keras_bert_lab.heads": ["classification = keras_bert_lab.heads.classification:Classification"],
    },
)
