"""The instrument: gate, events, digests, ledger, checks, attachments, diagnosis, command line."""
