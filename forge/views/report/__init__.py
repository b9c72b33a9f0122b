"""`forge report RUN`: a run as one HTML file to share.

`write_report` is called by the command and at the end of each run. It reads views only, so its time
does not grow with the number of turns; matplotlib is imported only when a report is made.
"""
