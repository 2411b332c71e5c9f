"""What becomes of each file's bytes: found, identified, read in turns, sent, acknowledged.

One thread does all of it but the sending. `engine` is its loop; a round looks for files
(`identify`, `locate`), reads a bounded piece of each (`reading`), saves what was prepared, and
hands it to the delivery (`sending`). `lifecycle` says when a file and its run are done.
"""
