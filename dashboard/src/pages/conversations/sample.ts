// The sample conversation: two people plan a journey with an assistant that calls a tool.
import type { TurnInput } from "../../api/types";

export const SAMPLE: TurnInput[] = [
  { role: "user", actor: "mia", content: "We want a week in **Lisbon** in May. I cannot eat gluten, and Jonas hates early flights." },
  { role: "assistant", actor: "planner", content: "Noted: no gluten for you, no flight before nine for Jonas. What is the budget for both of you?" },
  { role: "user", actor: "jonas", content: "About 1 800 euros in all. I live in Hamburg, Mia lives in Bremen." },
  {
    role: "assistant",
    actor: "planner",
    content: "I look for flights from both cities.",
    tool_calls: [{ id: "call_flights", name: "search_flights", arguments: '{"from": ["HAM", "BRE"], "to": "LIS", "not_before": "09:00"}' }],
  },
  { role: "tool", actor: "search_flights", tool_call_id: "call_flights", content: '{"flights": [{"from": "HAM", "at": "11:20", "price": 184}, {"from": "BRE", "at": "10:05", "price": 201}]}' },
  {
    role: "assistant",
    actor: "planner",
    content: "Two flights fit:\n\n| from | leaves | price |\n|---|---|---|\n| Hamburg | 11:20 | 184 € |\n| Bremen | 10:05 | 201 € |\n\nShall I hold them?",
  },
  { role: "user", actor: "mia", content: "Yes, please. And a place where I can eat bread again: is there a gluten-free bakery?" },
  { role: "assistant", actor: "planner", content: "There is one in Príncipe Real:\n\n1. it opens at eight,\n2. everything there is free of gluten,\n3. it is ten minutes from `Rato` station." },
];
