"""Programs as MLIR: Torch dialect, Linalg on tensors, StableHLO, TOSA."""
