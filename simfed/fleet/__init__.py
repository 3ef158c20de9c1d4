"""Who is there: each client's device and link (`columns`), when it is online (`availability`),
who is chosen (`selection`), what fails (`faults`), what a chosen one is asked (`tasks`), and the
contract in which time and learning meet (`contract`)."""
