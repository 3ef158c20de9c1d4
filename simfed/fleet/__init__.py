"""Who is there: each client's device and link (`columns`), when it is online (`availability`),
who is chosen (`selection`), what fails (`faults`), and what a chosen one is asked (`tasks`)."""
