"""Metadata, dependencies, the package_dir mapping and the entry points. BUILD.md says why each dependency is there."""

from pathlib import Path

from setuptools import setup

# heads/ and tools/ lie beside the core in the tree but are installed inside it, so that
# nothing called `heads` or `tools` ever lands at top level.
PACKAGES = {"keras_bert_lab": "keras_bert_lab", "keras_bert_lab.heads": "heads", "keras_bert_lab.tools": "tools"}

EXTRAS = {
    "test": ["pytest>=8,<10", "pytest-xdist>=3.6,<4", "hypothesis>=6,<7", "setuptools>=64", "wheel"],
    "lint": ["ruff>=0.9,<0.18"],
    "types": ["mypy>=1.14,<3"],
    # The other side of every comparison. torch should be a CPU build; BUILD.md says how to get one.
    "interop": ["torch>=2.6,<3", "transformers>=5,<6", "tokenizers>=0.21,<0.24"],
    "tensorboard": ["tensorboard>=2.19,<3"],
}

# tensorflow-text has wheels for these alone: not for Windows, and TensorFlow itself has none for Intel Macs. Elsewhere
# the Python tokenizer does everything but the in-graph export.
TEXT_IN_GRAPH = (
    "(sys_platform == 'linux' and (platform_machine == 'x86_64' or platform_machine == 'aarch64'))"
    " or (sys_platform == 'darwin' and platform_machine == 'arm64')"
)

setup(
    name="keras_bert_lab",
    version="0.1.0",
    description="BERT on TensorFlow and Keras 3: original checkpoints, exact text, plug-in heads, proved exports",
    long_description=Path(__file__).with_name("README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    keywords="bert tensorflow keras nlp text-classification savedmodel",
    packages=list(PACKAGES),
    package_dir=PACKAGES,
    package_data={"keras_bert_lab": ["py.typed"]},
    python_requires=">=3.10,<3.14",  # TensorFlow has no wheels outside
    install_requires=[
        "tensorflow>=2.21,<2.22",
        f"tensorflow-text>=2.21.1,<2.22; {TEXT_IN_GRAPH}",  # TensorFlow's minor version; 2.21.0 does not import
        "keras>=3.12.1,<3.16",
        "keras-nlp>=0.25,<0.33",
        "tf2onnx>=1.17,<1.18",
        "absl-py>=2,<3",
        "numpy>=1.26,<3",
        "h5py>=3.11,<4",
        "safetensors>=0.5,<0.9",
    ],
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["keras-bert-lab = keras_bert_lab.tools.main:run"],
        "keras_bert_lab.heads": [
            "classification = keras_bert_lab.heads.classification:Classification",
            "masked_lm = keras_bert_lab.heads.masked_lm:MaskedLM",
            "multi_label = keras_bert_lab.heads.multi_label:MultiLabel",
            "ner = keras_bert_lab.heads.ner:Ner",
            "qa_span = keras_bert_lab.heads.qa_span:QaSpan",
            "regression = keras_bert_lab.heads.regression:Regression",
        ],
    },
)
