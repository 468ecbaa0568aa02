"""A real model's chats through the tiers: the proof that people read."""
