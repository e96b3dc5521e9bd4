"""A host that authenticates itself by DH-HMAC-CHAP and shares no code with the target: Python's integers, hashlib and hmac.

host.py PORT SUBSYSTEM HOST SECRET CONTROLLER_SECRET|- HASHES GROUPS
HASHES and GROUPS are identifiers with commas between. Prints, of an admin queue and then of an I/O queue, the hash and
group that the target chose; ends with 0 if both queues can be used afterwards.
"""
import base64, hashlib, hmac, secrets, socket, struct, sys, zlib

HASH = {1: hashlib.sha256, 2: hashlib.sha384, 3: hashlib.sha512}
# RFC 7919, appendix A.
OFFSET = {1: (2048, 560316), 2: (3072, 2625351), 3: (4096, 5736041)}
port, subsystem, host, secret, controller_secret, hashes, groups = sys.argv[1:]


def e_times_2_to(bits):
    term = total = 1 << (bits + 64)
    k = 1
    while term:
        term //= k
        total += term
        k += 1
    return (total) >> 64


def prime(group):
    bits, x = OFFSET[group]
    return 2**bits - 2 ** (bits - 64) + (e_times_2_to(bits - 130) + x) * 2**64 - 1


def key(text, nqn):
    _, number, coded, _ = text.split(":")
    raw = base64.b64decode(coded)
    raw, told = raw[:-4], raw[-4:]
    assert zlib.crc32(raw) == int.from_bytes(told, "little")
    number = int(number)
    return hmac.new(raw, nqn.encode() + b"NVMe-over-Fabrics", HASH[number]).digest() if number else raw


class Queue:
    def __init__(self, number, controller):
        self.stream = socket.create_connection(("127.0.0.1", int(port)), timeout=60)
        self.stream.sendall(struct.pack("<BBBBIHBBI", 0, 0, 128, 0, 128, 0, 0, 0, 0).ljust(128, b"\0"))
        self.take(128)
        data = bytes([7] * 16) + struct.pack("<H", controller)
        data = data.ljust(256, b"\0") + subsystem.encode().ljust(256, b"\0") + host.encode().ljust(256, b"\0")
        words = struct.pack("<HHHHI", 0, number, 31, 0, 0)
        status, result, _ = self.call(1, words, data.ljust(1024, b"\0"))
        assert status == 0, hex(status)
        self.controller, asked = result & 0xFFFF, result >> 16
        assert asked == 2, "the target asks for authentication"

    def take(self, length):
        data = b""
        while len(data) < length:
            more = self.stream.recv(length - len(data))
            if not more:
                raise SystemExit("the target has closed the connection")
            data += more
        return data

    def call(self, kind, words, data=b"", room=0):
        place = struct.pack("<QI", 0, len(data) or room) + (b"\0\0\0\x01" if data else b"\0\0\0\x5a")
        entry = struct.pack("<BBHB19x", 0x7F, 0x40, 9, kind) + place + words.ljust(24, b"\0")
        total = 72 + len(data)
        self.stream.sendall(struct.pack("<BBBBI", 4, 0, 72, 72 if data else 0, total) + entry + data)
        received = b""
        while True:
            kind, _, length, offset, total = struct.unpack("<BBBBI", self.take(8))
            header = self.take(length - 8)
            if kind == 7:
                self.take(offset - length)
                received = self.take(total - offset)
                continue
            assert kind == 5, kind
            result, status = struct.unpack("<Q6xH", header)
            return status >> 1 & 0x7FF, result, received

    def say(self, message):
        status, _, _ = self.call(5, struct.pack("<4BI", 0, 1, 1, 0xE9, len(message)), message)
        assert status == 0, hex(status)

    def hear(self):
        status, _, message = self.call(6, struct.pack("<4BI", 0, 1, 1, 0xE9, 4096), room=4096)
        assert status == 0, hex(status)
        if message[:2] == b"\0\xf1":
            raise SystemExit(f"refused for reason {message[7]}")
        return message

    def authenticate(self):
        transaction = secrets.randbits(16)
        lists = [bytes(int(one) for one in text.split(",")) for text in (hashes, groups)]
        head = struct.pack("<BBHHBB", 0, 0, 0, transaction, 0, 1)
        offer = struct.pack("<4B", 1, 0, len(lists[0]), len(lists[1]))
        self.say(head + offer + lists[0].ljust(30, b"\0") + lists[1].ljust(30, b"\0"))
        message = self.hear()
        number, told, length, chosen, group, public_length, sequence = struct.unpack("<H2xHBxBBHI", message[:16])
        assert (number, told) == (0x0101, transaction)
        value, theirs = message[16 : 16 + length], message[16 + length : 16 + length + public_length]
        function, shared, public = HASH[chosen], None, b""
        if group:
            p = prime(group)
            exponent = secrets.randbits(512)
            public = pow(2, exponent, p).to_bytes(public_length, "big")
            shared = pow(int.from_bytes(theirs, "big"), exponent, p).to_bytes(public_length, "big")

        def answer(key, value, sequence, label, first, second):
            if shared is not None:
                value = hmac.new(function(shared).digest(), value, function).digest()
            words = struct.pack("<IHB", sequence, transaction, 0)
            said = value + words + label + first.encode() + b"\0" + second.encode()
            return hmac.new(key, said, function).digest()

        both = controller_secret != "-"
        mine, number = secrets.token_bytes(length), secrets.randbits(32) | 1
        response = answer(key(secret, host), value, sequence, b"HostHost", host, subsystem)
        head = struct.pack("<H2xHBxBxHI", 0x0201, transaction, length, both, len(public), number if both else 0)
        self.say(head + response + (mine if both else bytes(length)) + public)
        message = self.hear()
        assert struct.unpack("<H2xHBxB", message[:9]) == (0x0301, transaction, length, both)
        if both:
            right = answer(key(controller_secret, subsystem), mine, number, b"Controller", subsystem, host)
            assert message[16 : 16 + length] == right, "the controller's response"
            self.say(struct.pack("<H2xH10x", 0x0401, transaction))
        print(chosen, group)


admin = Queue(0, 0xFFFF)
assert admin.call(4, struct.pack("<II", 0, 0x1C))[0] == 0x191, "nothing before"
admin.authenticate()
assert admin.call(0, struct.pack("<IIQ", 0, 0x14, 0x460001))[0] == 0
assert admin.call(4, struct.pack("<II", 0, 0x1C))[:2] == (0, 1), "ready"
io = Queue(1, admin.controller)
io.authenticate()
# Again, on a queue in use.
admin.authenticate()
io.authenticate()
assert admin.call(4, struct.pack("<II", 0, 0x1C))[:2] == (0, 1), "ready"
