"""One module per family: from StableHLO and CHLO ops to RLX ops."""
