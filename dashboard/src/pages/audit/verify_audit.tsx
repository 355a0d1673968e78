// The verification of the whole audit: part after part, with its progress.
import { useState } from "preact/hooks";
import { api, body } from "../../api/client";
import type { AuditVerification } from "../../api/types";
import { WorkNote } from "../../components/work_note";
import { number } from "../../lib/format";
import { useWork } from "../../lib/work";
import { strings } from "../../strings";

const text = strings.audit;

interface Outcome {
  last: AuditVerification;
  entries: number;
  days: number;
}

export function VerifyAudit() {
  const work = useWork(text.verifying("0"));
  const [outcome, setOutcome] = useState<Outcome | null>(null);
  const verify = () => {
    setOutcome(null);
    work.run(async (report, signal) => {
      let [entries, days] = [0, 0];
      for (let cursor: string | null = null; ; ) {
        const last: AuditVerification = await body(api.POST("/v1/admin/audit/verify", { body: cursor ? { cursor } : {}, signal }));
        entries += last.entries;
        days += last.chains.length;
        report(text.verifying(number(entries)));
        if (!last.next_cursor) return setOutcome({ last, entries, days });
        cursor = last.next_cursor;
      }
    });
  };
  return (
    <>
      <p class="row small"><span class="muted">{text.chain}</span> <button onClick={verify} disabled={work.progress !== null}>{text.verifyAll}</button></p>
      <WorkNote work={work} />
      {outcome && <p class={outcome.last.valid ? "notice good" : "notice error"} role="status">{sentence(outcome)}</p>}
    </>
  );
}

function sentence({ last, entries, days }: Outcome): string {
  const { first_break: broken } = last;
  if (!broken) return text.validAll(number(entries), days, number(last.unsealed));
  return text.broken(text.breaks[broken.kind], broken.day, broken.number === null ? null : number(broken.number));
}
