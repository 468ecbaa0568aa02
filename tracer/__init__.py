"""The instrument: gate, events, digests, ledger, checks, attachments, judgement and command."""
