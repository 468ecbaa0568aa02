"""The users' questions: every chat asks all of its questions, interleaved with the others."""

__all__ = ["CHATS", "SYSTEM"]

#: Shared by all chats, so that its pages are shared too.
SYSTEM = "You are a helpful assistant. Answer in one short sentence."

CHATS: tuple[tuple[str, ...], ...] = (
    ("What is the capital of France?", "Which river runs through it?", "Name a museum there."),
    ("Name three primary colors.", "Which two make green?", "What do red and yellow make?"),
    ("Why is the sky blue?", "And why is a sunset red?", "Is the sky blue on Mars?"),
    ("What is 12 plus 30?", "Now take away 2.", "Is that number even?"),
    ("What do bees make?", "What do they need for it?", "How long does it keep?"),
    ("Who wrote Romeo and Juliet?", "Where does it take place?", "How does it end?"),
)
