import unittest

from tollgate import Gate, Rule
from tollgate.gate import SWEEP_EVERY


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class GateTest(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.gate = Gate([Rule(2, 1), Rule(3, 60)], self.clock)

    def ask(self, at, address="198.51.100.1"):
        self.clock.now = at
        return self.gate.ask(address)

    def test_every_rule_holds(self):
        self.assertTrue(self.ask(0).allowed)
        self.assertTrue(self.ask(0.5).allowed)
        self.assertFalse(self.ask(0.75).allowed)
        self.assertTrue(self.ask(2).allowed)
        self.assertFalse(self.ask(4).allowed)

    def test_who_keeps_to_retry_after_is_let_through(self):
        for at in (0, 0.5):
            self.assertTrue(self.ask(at).allowed)
        told = self.ask(0.75)
        self.assertFalse(told.allowed)
        self.assertEqual(told.retry_after, 0.25)
        self.assertTrue(self.ask(0.75 + told.retry_after).allowed)

    def test_refused_requests_do_not_count(self):
        for at in (0, 0.5, 0.6, 0.7, 0.8):
            self.ask(at)
        self.assertTrue(self.ask(1.25).allowed)

    def test_clients_do_not_share(self):
        self.ask(0)
        self.ask(0)
        self.assertFalse(self.ask(0).allowed)
        self.assertTrue(self.ask(0, "198.51.100.2").allowed)

    def test_idle_clients_are_forgotten(self):
        for i in range(SWEEP_EVERY - 1):
            self.ask(0, f"10.0.{i // 250}.{i % 250}")
        self.assertEqual(self.gate.clients(), SWEEP_EVERY - 1)
        self.ask(1000, "203.0.113.1")
        self.assertEqual(self.gate.clients(), 1)

    def test_gate_without_rules(self):
        with self.assertRaises(ValueError):
            Gate([])
