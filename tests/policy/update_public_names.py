"""Write the list of public names anew: `python -m tests.policy.update_public_names`."""

from __future__ import annotations

from tests.policy.public_names import SNAPSHOT, current

if __name__ == "__main__":
    names = current()
    SNAPSHOT.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    print(f"{SNAPSHOT.name}: {len(names)} names")
