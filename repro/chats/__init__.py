"""Chats with a real model through the tiers: evidence that people can read."""
