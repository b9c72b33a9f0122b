"""`forge report RUN`: a run as one HTML file that can be sent to a colleague.

`write_report` is called by the command and at the end of each run. It reads views only, so it takes
as long for a million turns as for a thousand; matplotlib is imported when a report is made.
"""

from forge.views.report.write import write_report

__all__ = ["write_report"]
