"""`python -m training.jail` prints what holds a confined process on this machine, as JSON."""

import json
from dataclasses import asdict

from training.jail.confinement import confine

if __name__ == "__main__":
    found = confine("this process", [])
    print(json.dumps(asdict(found) | {"missing": found.missing}))
