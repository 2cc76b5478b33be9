"""Runs as another user of this machine and sends requests to servers: `another_user.py UID`.

Reads JSON objects from standard input, one a line: `address`, and `requests`, each [method, path, headers, body]. Sends them one
after another, and prints a line: the status and text of each answer.
"""

import encodings.idna
import encodings.latin_1  # noqa: F401
import http.client
import json
import os
import sys
from urllib.parse import urlsplit


def main(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    for line in sys.stdin:
        given = json.loads(line)
        place = urlsplit(given["address"])
        answers = []
        for method, path, headers, body in given["requests"]:
            connection = http.client.HTTPConnection(place.hostname, place.port)
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answers.append([response.status, response.read().decode("utf-8", "replace")])
            connection.close()
        print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
