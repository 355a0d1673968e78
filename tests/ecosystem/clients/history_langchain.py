import sys

from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_openai import ChatOpenAI
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.langchain import TurnkeepChatMessageHistory

turnkeep = Turnkeep()
chat = RunnableWithMessageHistory(
    ChatOpenAI(model="gpt-5-mini"), lambda session: TurnkeepChatMessageHistory(session, turnkeep, owner="mia")
)
print(chat.invoke(sys.argv[1], {"configurable": {"session_id": "trip-langchain"}}).text)
