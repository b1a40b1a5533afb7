"""Models whose weights are quantized: modules, the conversion of models, GGUF files."""
