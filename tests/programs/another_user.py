"""Runs as another user of this machine and sends requests to the server one after another. Prints JSON.

Reads from standard input a JSON object: `address`, `uid`, and `requests`, each [method, path, headers, body].
"""

import encodings.idna
import encodings.latin_1  # noqa: F401
import http.client
import json
import os
import sys
from urllib.parse import urlsplit


def main() -> None:
    given = json.load(sys.stdin)
    os.setgroups([])
    os.setgid(given["uid"])
    os.setuid(given["uid"])
    place = urlsplit(given["address"])
    answers = []
    for method, path, headers, body in given["requests"]:
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=120)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answers.append([response.status, response.read().decode("utf-8", "replace")])
        connection.close()
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
