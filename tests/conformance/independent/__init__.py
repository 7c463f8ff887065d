"""What others say: node tests of ONNX, functions of SciPy, modules of PyTorch."""
