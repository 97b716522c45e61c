"""What the machine does while a run goes on: `system.jsonl`, written by the runner beside its ranks."""
