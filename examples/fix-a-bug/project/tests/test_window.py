import unittest

from tollgate.rules import Rule
from tollgate.window import Window


class WindowTest(unittest.TestCase):
    def setUp(self):
        self.window = Window(Rule(limit=2, seconds=60))

    def fill(self, *times):
        for t in times:
            self.assertFalse(self.window.full(t))
            self.window.add(t)

    def test_limit(self):
        self.fill(0, 1)
        self.assertTrue(self.window.full(2))

    def test_request_counts_until_the_end(self):
        self.fill(0, 30)
        self.assertTrue(self.window.full(59.999))

    def test_request_no_longer_counts_at_the_end(self):
        self.fill(0, 30)
        self.assertFalse(self.window.full(60))

    def test_wait_is_what_is_left(self):
        self.fill(0, 30)
        self.assertEqual(self.window.wait(45), 15)
        self.assertEqual(self.window.wait(60), 0)

    def test_steady_pace(self):
        window = Window(Rule(limit=1, seconds=10))
        for t in range(0, 100, 10):
            self.assertFalse(window.full(t), f"at {t}")
            window.add(t)

    def test_idle(self):
        self.fill(0, 30)
        self.assertFalse(self.window.idle(89))
        self.assertTrue(self.window.idle(91))


class RuleTest(unittest.TestCase):
    def test_nonsense_is_refused(self):
        for limit, seconds in ((0, 1), (-1, 1), (1, 0), (1, -1), (1, float("nan"))):
            with self.assertRaises(ValueError):
                Rule(limit, seconds)
