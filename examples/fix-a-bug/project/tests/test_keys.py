import unittest

from tollgate.keys import client_key


class KeyTest(unittest.TestCase):
    def test_ipv4_by_itself(self):
        self.assertEqual(client_key(" 192.0.2.1 "), "192.0.2.1")
        self.assertNotEqual(client_key("192.0.2.1"), client_key("192.0.2.2"))

    def test_ipv6_by_its_network(self):
        self.assertEqual(client_key("2001:db8::1"), client_key("2001:db8::ffff"))
        self.assertNotEqual(client_key("2001:db8::1"), client_key("2001:db8:0:1::1"))
        self.assertEqual(client_key("fe80::1%eth0"), client_key("fe80::2%eth1"))

    def test_mapped_ipv4_is_ipv4(self):
        self.assertEqual(client_key("::ffff:192.0.2.1"), "192.0.2.1")

    def test_names(self):
        self.assertEqual(client_key("Worker-7"), "worker-7")
