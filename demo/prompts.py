# SPDX-License-Identifier: Apache-2.0
"""The demo's prompts. The diary's answer shows that the K/V of the lines before it was read."""

CAPITAL = "What is the capital of France?"
SKY = "Explain in two sentences why the sky is blue during the day."

_PEOPLE = ("Anna the baker", "Ben the carpenter", "Clara the doctor", "David the gardener",
           "Emma the teacher", "Felix the painter", "Greta the sailor", "Hugo the tailor")
_CITIES = ("Lisbon", "Vienna", "Dublin", "Oslo", "Prague", "Athens", "Warsaw")


def diary(days):
    """A prompt of so many lines "Day N: ..." in one style, and the request for one more."""
    lines = [f"Day {day + 1}: {_PEOPLE[day % len(_PEOPLE)]} took the train to "
             f"{_CITIES[day % len(_CITIES)]}, met an old friend at the station, and wrote a letter "
             "home in the evening." for day in range(days)]
    return "\n".join([*lines, "Write one more day in the same style, about a man called Tom."])
