"""Replays an access log: python3 -m tollgate LIMIT SECONDS < LOG"""

import sys

from . import Gate, Rule


def main(argv):
    if len(argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    gate = Gate([Rule(int(argv[1]), float(argv[2]))])
    for line in sys.stdin:
        moment, address = line.split()
        decision = gate.ask(address, float(moment))
        verdict = "allow" if decision.allowed else f"deny {decision.retry_after:g}"
        print(moment, address, verdict)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
