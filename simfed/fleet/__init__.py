"""The fleet: clients' devices and links, their presence, faults and tasks.

`columns` has each client's device and link, `availability` when it is online,
`selection` who is chosen, `faults` what fails, `tasks` what a chosen one is asked, and
`contract` is where time and learning meet.
"""
