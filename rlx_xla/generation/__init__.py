"""Text from decoder-only language models: prompts, sampling on the device, streams of tokens."""
