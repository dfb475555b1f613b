"""Sentences of customers' messages. Those for training and those for tests have no sentence and no city in common.

A sentence has one of the placeholders {order}, {city}, {amount} and {date}; a remark has {number} or none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Templates:
    """Sentences by the field that they state. `remarks` state none; their numbers are to be ignored."""

    greetings: tuple[str, ...]
    order: tuple[str, ...]
    city: tuple[str, ...]
    amount: tuple[str, ...]
    date: tuple[str, ...]
    remarks: tuple[str, ...]
    cities: tuple[str, ...]


TEMPLATES: Mapping[Split, Templates] = {
    "train": Templates(
        greetings=("", "", "Hello,", "Hi there,", "Good morning,", "Dear support team,", "To whom it may concern,"),
        order=(
            "My order {order} has not arrived.",
            "I am writing about order {order}.",
            "The parcel of {order} came damaged.",
            "Please look at order no. {order}, an item is missing.",
            "{order} is still marked as packed.",
            "I would like to return order {order}.",
            "Why was order {order} split in two parcels?",
            "There is a problem with my purchase, number {order}.",
            "Can you tell me where {order} is?",
            "Order number: {order}.",
            "I want to cancel {order}, please.",
            "You sent me the wrong colour, see order {order}.",
        ),
        city=(
            "It was to be delivered to {city}.",
            "I live in {city}.",
            "The address is in {city}.",
            "Please send the replacement to {city}.",
            "Delivery city: {city}.",
            "Your driver could not find my street in {city}.",
            "Shipping was to {city}.",
            "It should have gone to my office in {city}.",
            "We moved to {city}, and the parcel has to go there.",
            "The parcel shop in {city} does not have it.",
        ),
        amount=(
            "I paid {amount}.",
            "The total was {amount}.",
            "You charged me {amount}.",
            "My card was debited with {amount}.",
            "The invoice says {amount}.",
            "Please refund {amount}.",
            "Amount paid: {amount}.",
            "I transferred {amount} for it.",
            "It cost me {amount} altogether.",
            "The bill of {amount} is settled.",
        ),
        date=(
            "I ordered on {date}.",
            "The order is from {date}.",
            "I placed it on {date}.",
            "Date of the order: {date}.",
            "It was bought on {date}.",
            "My confirmation is dated {date}.",
            "I have been waiting since I ordered it on {date}.",
            "The purchase was made {date}.",
            "According to your email I ordered {date}.",
            "That was on {date}.",
        ),
        remarks=(
            "My phone number is {number}.",
            "My customer number is {number}.",
            "I have called {number} without success.",
            "The tracking page shows nothing.",
            "I have been a customer for years.",
            "Please answer soon.",
            "The ticket {number} was closed without an answer.",
            "Your chat sent me here.",
            "It is a birthday present.",
            "The article number is {number}.",
        ),
        cities=(
            *("Lyon", "Hamburg", "Vienna", "Porto", "Krakow", "Turin", "Bergen", "Ghent", "Seville", "Leeds"),
            *("Utrecht", "Aarhus", "Brno", "Tallinn", "Graz", "Bilbao", "Nantes", "Leipzig", "Cork", "Malmö"),
            *("Basel", "Riga", "Split", "Thessaloniki", "Debrecen", "New York", "The Hague", "San Sebastián"),
            *("Bologna", "Dresden", "Toulouse", "Gdansk", "Bristol", "Rotterdam", "Trieste", "Salzburg"),
        ),
    ),
    "test": Templates(
        greetings=("", "Hey,", "Good evening,", "Dear Sir or Madam,"),
        order=(
            "Your staff could not say what happened to {order}.",
            "It concerns the order with the number {order}.",
            "What is the status of order {order}?",
            "I received only half of {order}.",
            "Kindly check {order} for me.",
            "The lid in my order {order} is broken.",
        ),
        city=(
            "I expected it at my home in {city}.",
            "The recipient lives in {city}.",
            "Could the courier try again in {city}?",
            "Ship it to {city}, please.",
            "It never reached {city}.",
        ),
        amount=(
            "I have already spent {amount} on this.",
            "My bank statement shows {amount}.",
            "The price I paid was {amount}.",
            "I want my {amount} back.",
            "In total I was billed {amount}.",
        ),
        date=(
            "I bought it on {date}.",
            "It was ordered on {date}.",
            "I submitted the order on {date}.",
            "Order date {date}.",
            "My purchase dates from {date}.",
        ),
        remarks=(
            "You can reach me under {number}.",
            "My account is {number}.",
            "Complaint {number} has been open for weeks.",
            "Your hotline does not answer the phone.",
            "I am rather disappointed.",
            "Thanks for your help.",
        ),
        cities=(
            *("Marseille", "Munich", "Geneva", "Lisbon", "Warsaw", "Naples", "Oslo", "Antwerp", "Valencia"),
            *("Glasgow", "Eindhoven", "Odense", "Ostrava", "Tartu", "Innsbruck", "Zaragoza", "Bordeaux"),
            *("Cologne", "Galway", "Uppsala", "Los Angeles", "Las Palmas"),
        ),
    ),
}
