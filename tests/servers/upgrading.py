"""Clients that offer HTTP/2 with their first request: curl, and Java's own."""

from __future__ import annotations

import shutil
import subprocess

from tailrace.logstore.java import why_no_java

JAVA = """
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;

/** Posts each file to the URL, by one client as it comes: it offers an upgrade to HTTP/2. */
public class Post {
    public static void main(String[] given) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int i = 1; i < given.length; i++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(given[0]))
                .header("Content-Type", "text/plain")
                .POST(HttpRequest.BodyPublishers.ofFile(Path.of(given[i])))
                .build();
            HttpResponse<String> answer =
                client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.version() + " " + answer.statusCode());
        }
    }
}
"""


def why_no_upgrading_clients() -> str | None:
    """A sentence that says what is missing here; None if both clients are there."""
    curl = shutil.which("curl")
    if curl is None:
        return "no curl found"
    said = subprocess.run([curl, "--version"], capture_output=True, text=True, check=False).stdout
    if "HTTP2" not in said:
        return "this curl speaks no HTTP/2"
    if shutil.which("javac") is None:
        return "no Java compiler found (Debian: openjdk-17-jdk-headless)"
    return why_no_java()
