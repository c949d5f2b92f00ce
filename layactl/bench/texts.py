"""Texts of the benchmark suite, written for it (Apache-2.0, as the code)."""

from __future__ import annotations

# Tickets, the third in Italian.
TICKETS = (
    "Hello, I have now been charged twice for the same workspace. The first payment of 89 euros left my account "
    "on the third of the month, the second one on the fifth, and both carry the order number WK-20931. Your "
    "assistant told me that the second charge would disappear by itself within two days. It did not. In the "
    "meantime my colleague cannot log in, because the licence page says that a payment is pending, so we lost "
    "most of Thursday. Please send the second amount back to the card it came from, unlock the licence today, and "
    "tell me whether the next invoice will be right. If this is the wrong address for such things, kindly pass it "
    "on rather than asking me to write again. Regards, Ines",
    "Since the update last night the meter in hall two shows a flow of zero while the pump is clearly running. We "
    "restarted the gateway, swapped the cable and compared the reading with the handheld: forty litres a minute "
    "there, nothing on the dashboard. The alarm that should fire at zero flow did not fire either, which worries "
    "me more than the number. The log has one line that repeats every ten seconds, 'frame dropped, checksum', and "
    "nothing else. Other halls look fine. We can run by hand until the evening shift leaves, and not after that. "
    "Please tell us whether to roll back, and if so how, because the page about it ends in the middle of a "
    "sentence. Serial number 7734-B, firmware 5.2.",
    "Buongiorno, il pacco che aspettavo per lunedi risulta consegnato, ma qui non e arrivato niente. Il vicino "
    "non ha visto nessuno, il portiere nemmeno, e la firma nella ricevuta non e la mia. Dentro c'erano due "
    "lampade e un tavolino per la camera degli ospiti, che arrivano sabato. Vorrei sapere dove si trova il pacco, "
    "oppure ricevere una nuova spedizione senza spese entro venerdi. Se non e possibile, chiedo il rimborso "
    "dell'intero importo, 214 euro, sulla stessa carta. Ho gia scritto due volte dal modulo del sito e ho "
    "ricevuto soltanto una risposta automatica. Il numero dell'ordine e 55-1180-C. Grazie per una risposta "
    "scritta da una persona, Marta Bellini",
)

# One task, repeated or cut to the length that is wanted.
TASK = (
    "Read the attached delivery note and give the supplier, the date, every line with its quantity, and the total "
    "weight. Where a line has been struck out by hand, leave it out and say so in the remarks. Quantities are "
    "written with a comma in some notes and with a point in others; give all of them with a point. If the weight "
    "on the note and the sum of the lines differ by more than one percent, give both and mark the record. The "
    "supplier's name must be the one of the register, not the one of the letterhead, which is often a trade name. "
    "Pages may arrive in the wrong order; the page number in the footer decides. Do not translate article names, "
    "and keep the article numbers exactly as they are printed, leading zeros included. A stamp across a number "
    "makes it unreadable: write null for it and never a guess. The result is one JSON object with the keys "
    "supplier, date, lines, weight and remarks, and nothing around it. Dates are day before month unless the "
    "supplier's country says otherwise."
)
CRITERION = (
    "Supplier, date, all lines and the total weight are right, and the remarks name every line that was struck out."
)

SKILLS = (
    ("field extraction", 188, 200, "exact match"),
    ("table reading", 141, 180, "all cells right"),
    ("long documents", 52, 90, "nothing left out"),
    ("arithmetic", 233, 240, "exact result"),
)
EXECUTORS = (
    ("Small local model", "local", "4B general model on this laptop, quantized, no network"),
    ("Large hosted model", "api", "hosted general model, high price, slow at busy hours"),
    ("Document pipeline", "pipeline", "optical recognition followed by rules, made for delivery notes"),
    ("Night batch", "batch", "the same rules, run once a night on everything that came in"),
    ("Clerk", "person", "a trained person, weekdays from eight to five, about ten notes an hour"),
    ("Old rules", "pipeline", "the rules of last year, kept for comparison"),
    ("Code model", "api", "hosted model for programs, writes a parser and runs it"),
    ("Two-step agent", "agent", "drafts with the small model and checks with the large one"),
)

TEAMS = (
    *("billing", "technical support", "shipping", "returns", "licences", "security", "sales", "legal"),
    *("press", "training", "hardware", "field service", "accounts", "partners", "procurement", "privacy"),
    *("translation", "events", "facilities", "somebody else"),
)
