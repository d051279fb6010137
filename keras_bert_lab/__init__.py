"""BERT on TensorFlow and Keras 3. The public names load lazily: importing the package does not import TensorFlow."""
