/**
 * For the AI SDK (`npm install ai`): the server side of `useChat`, with its messages and running answers in Turnkeep.
 *
 * An answer is stored as streamed turns while the model writes it: one turn for each step, and one for each tool result.
 * Invariants: the turn of an answer is open before the model is called, under an id that follows from the message, so one
 * request calls the model. The model is read to its end whether or not the page listens, and a page receives `finish` only
 * after the answer is stored. So a page that comes back, at any process, either continues the answer or finds it in the
 * history.
 */

import { createUIMessageStreamResponse, type ModelMessage, type TextStreamPart, toUIMessageStream, type UIMessage } from "ai";
import { AnswerWriter, type Beginning, resultsStored, storeOutputs } from "./ai_answer.js";
import { withApproved } from "./ai_approvals.js";
import { promptOf } from "./ai_messages.js";
import { answerChunks, type Chunk, replayed, UNFINISHED } from "./ai_resume.js";
import { answeredBy, dropStaleAnswers, ENDED, hasCode, isLive, openingOf, openNext, stopAnswer, storeMessage, turnOf } from "./ai_turns.js";
import type { ContextRequest } from "./generated/api/index.js";
import type { Conversation } from "./turnkeep.js";

export { history } from "./ai_messages.js";

/** What `streamText` takes: spread it into its options. */
export interface Prompt {
  instructions?: string;
  messages: ModelMessage[];
  /** Ends the model when the answer was stopped, or its message edited, at any process. */
  abortSignal: AbortSignal;
}

/** The result of `streamText`, with any tools. */
export type ModelStream = { stream: ReadableStream<TextStreamPart<any>> };

export interface ReplyOptions {
  /** The actor of the message, and that of the answer. */
  actor?: string;
  assistant?: string;
  system?: string;
  tokenBudget?: number;
  /** Other fields of the context; they go over what this function asks for. */
  context?: Partial<ContextRequest>;
  /** `useChat().regenerate()`: supersede the answer to the message, and everything after it, then answer again. */
  regenerate?: boolean;
  /** Keeps a serverless function alive until the answer is stored: `waitUntil` or `after` of the platform. */
  waitUntil?: (stored: Promise<void>) => void;
}

/**
 * Store the message of a page, build the context, and stream the model's answer: the `POST` of a chat route.
 *
 * A message that is sent again, with the same id, is stored once. If it was answered already, or is being answered, this
 * is the answer, and the model is not called. With another text, the message is revised, and answered again. `message` may
 * also be the answer that the page sends back, with the outputs of tools that it ran, and with approved or denied calls.
 * Throws a TypeError for other messages.
 */
export async function reply(
  chat: Conversation, message: UIMessage, callModel: (prompt: Prompt) => ModelStream | Promise<ModelStream>,
  options: ReplyOptions = {},
): Promise<Response> {
  const beginning: Beginning = message.role === "user"
    ? { asked: await storeMessage(chat, message, options), step: 0 }
    : await storeOutputs(chat, message, options.actor);
  const { asked, step, from, decided } = beginning;
  const open = await openNext(chat, asked, options.assistant, { step, attempt: 0 });
  if (open === null) return responseOf(answerChunks(chat, asked, from));
  const answer = new AnswerWriter(chat, asked, open, options.assistant);
  try {
    const before = open.step > 0 ? await resultsStored(chat, asked, decided) : [];
    let context = await contextOf(chat, options);
    if (context.as_of_seq > (asked.seq ?? 0)) {
      // an answer to an old text may be in it: the request that edits the message has not removed it yet, or was killed
      await dropStaleAnswers(chat, asked);
      context = await contextOf(chat, options);
    }
    // an edit that comes later finds the open turn, and aborts it
    if (!context.included.turn_ids.includes(asked.id) && !isLive(await turnOf(chat, asked.id))) {
      await answer.abort("the message was edited");
      return responseOf(new ReadableStream({ start: fail }));
    }
    const prompt = promptOf(context);
    if (decided !== undefined) {
      prompt.messages = withApproved(prompt.messages, decided);
      if (!(await answer.startCalls(decided))) return responseOf(answerChunks(chat, asked, from));
    }
    const { stream } = await callModel({ ...prompt, abortSignal: answer.lost });
    const isContinued = before.length > 0; // after what the page sent, or by another process, which died
    const id = from?.messageId ?? before[0]?.id ?? answer.turnId;
    const chunks = toUIMessageStream({ stream, generateMessageId: () => id, originalMessages: [message], sendStart: !isContinued });
    const [received, stored] = pump(chunks as ReadableStream<Chunk>, answer, isContinued ? replayed(asked, before, from) : []);
    options.waitUntil?.(stored);
    return responseOf(received);
  } catch (error) {
    await answer.abort("the model was not called").catch(() => undefined); // what was thrown is raised
    throw error;
  }
}

/**
 * Continue the answer that is being written, from its beginning: the `GET` of a chat route, for `useChat({ resume: true })`.
 *
 * 204 if there is none.
 */
export async function resume(chat: Conversation): Promise<Response> {
  const { running } = await openingOf(chat);
  const askedId = running.map(({ turn }) => answeredBy(turn)).at(-1);
  if (askedId === undefined || askedId === null) return new Response(null, { status: 204 });
  return responseOf(answerChunks(chat, await turnOf(chat, askedId)));
}

/**
 * Stop the answer that is being written, at whatever process: the `DELETE` of a chat route. The text so far is kept.
 *
 * Always 204. Of several running answers it stops the newest.
 */
export async function stop(chat: Conversation): Promise<Response> {
  await stopAnswer(chat);
  return new Response(null, { status: 204 });
}

function responseOf(chunks: ReadableStream<Chunk>): Response {
  return createUIMessageStreamResponse({ stream: chunks });
}

function fail(page: ReadableStreamDefaultController<Chunk>): void {
  page.enqueue({ type: "error", errorText: UNFINISHED });
  page.close();
}

function contextOf(chat: Conversation, options: ReplyOptions) {
  return chat.context(options.tokenBudget ?? 8_000, {
    semantic_recall: { k: 5 },
    ...(options.system === undefined ? {} : { system: options.system }),
    ...options.context,
    format: "anthropic", // the one format whose authors' names are in the text, as these messages need
  });
}

/** Read an answer to its end and write it; return what the page receives, and when all is stored. */
function pump(
  chunks: ReadableStream<Chunk>, answer: AnswerWriter, before: Iterable<Chunk>,
): [ReadableStream<Chunk>, Promise<void>] {
  let page: ReadableStreamDefaultController<Chunk> | null = null;
  const received = new ReadableStream<Chunk>({
    start: (controller) => void (page = controller),
    cancel: () => void (page = null), // the page is gone; the answer goes on
  });
  const run = async (): Promise<void> => {
    for (const chunk of before) page?.enqueue(chunk);
    const reader = chunks.getReader();
    const lost = new Promise<never>((_, reject) => {
      const onLost = (): void => reject(answer.lost.reason);
      answer.lost.addEventListener("abort", onLost);
      if (answer.lost.aborted) onLost();
    });
    try {
      for (let read = await Promise.race([reader.read(), lost]); !read.done; read = await Promise.race([reader.read(), lost])) {
        await answer.take(read.value);
        page?.enqueue(read.value);
      }
      await answer.abort("the model ended without an end of its answer");
    } catch (error) {
      reader.cancel().catch(() => undefined);
      if (hasCode(error, ...ENDED)) return void page?.enqueue({ type: "abort" }); // by `stop`, or an edit
      await answer.abort("the writer failed").catch(() => undefined);
      page?.enqueue({ type: "error", errorText: "The answer could not be stored." });
      throw error;
    } finally {
      page?.close();
    }
  };
  const stored = run();
  stored.catch(() => undefined); // for who passes no `waitUntil`
  return [received, stored];
}
