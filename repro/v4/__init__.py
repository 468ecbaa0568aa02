"""A small model with DeepSeek-V4's attention, over its five pools."""
